"""The smallest Django project that has the command."""

import os
import sys

from django.conf import settings
from django.core.management import execute_from_command_line

settings.configure(
    INSTALLED_APPS=["nightly"],
    DATABASES={"default": {
        "ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"], "USER": os.environ["PGUSER"],
        "HOST": os.environ["PGHOST"], "PORT": os.environ["PGPORT"], "PASSWORD": os.environ.get("PGPASSWORD", ""),
    }},
    FENCELOCK_URL=os.environ["FENCELOCK_URL"], CLOCK_SKEW=float(os.environ.get("CLOCK_SKEW", "30")),
)
execute_from_command_line(sys.argv)
