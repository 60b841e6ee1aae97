"""Configuration files that ship with kernelward: protocols, reward shaping, calibration."""
