"""Choose the profile of hypothesis by which these tests draw their examples."""

import hypothesis_profiles  # noqa: F401 - the import chooses it
