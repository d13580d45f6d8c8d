"""How many examples Hypothesis tries: a share of them before a push, all of them at night."""

from hypothesis import settings

PUSH, NIGHT = "push", "night"
_SHARE = 4
_FEWEST = 5

settings.register_profile(PUSH, max_examples=100 // _SHARE, deadline=None)
settings.register_profile(NIGHT, max_examples=100, deadline=None)


def examples(at_night: int) -> int:
    """Those that the profile in force tries of so many."""
    if settings.get_current_profile_name() == NIGHT:
        return at_night
    return max(_FEWEST, at_night // _SHARE)
