"""Assembles the `kernelward` console script from the commands of each room."""

from ..reward.cli import app, run


def main() -> None:
    """Entry point of the console script; see `kernelward.reward.cli.run` for the exit codes."""
    run(app)
