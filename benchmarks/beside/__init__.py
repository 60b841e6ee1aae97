"""Parts of beside_training.py."""
