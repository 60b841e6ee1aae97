"""Commands on suites: show, validate, build."""

import typer

suite_app = typer.Typer(no_args_is_help=True, help="Show, validate or build the suite of a problem.")
