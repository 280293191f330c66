"""What holds for all tests: a property is judged by its examples, not by the load of a machine."""

from hypothesis import settings

settings.register_profile("kohort", deadline=None)
settings.load_profile("kohort")
