"""The one exception for things that the user supplied wrong."""


class InputError(ValueError):
    """Something the user supplied is wrong (a file, an id, a YAML key, a dataset column).

    The message says what is wrong, where, and what to do. The command line turns it into exit code 2.
    """
