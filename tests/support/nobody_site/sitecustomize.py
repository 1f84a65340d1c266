"""For an interpreter of the system: what is installed beside the one that runs the tests."""

import os
import site

for folder in os.environ["SITE_OF_THE_TESTS"].split(os.pathsep):
    site.addsitedir(folder)
