"""The errors that a user can act on. `training.launch` prints them as one line."""


class RecipeError(ValueError):
    """A setting has to be changed; the message says which one and how."""


class DataError(ValueError):
    """Data has to be corrected; the message says where it is and what to do."""
