"""manage.py nightly: cron starts it on every host, and it runs on one."""

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from fencelock import Client, HeldError, LeaseLostError, StaleTokenError, UnavailableError
from fencelock.guard import fenced


class Command(BaseCommand):
    help = "Close an account, on one host at a time."

    def handle(self, **options):
        client = Client(settings.FENCELOCK_URL)
        try:
            # min_hold is longer than the hosts' clocks differ: a host that is late skips its run.
            with client.lock("accounts/1", wait=0, min_hold=settings.CLOCK_SKEW) as lease:
                with fenced(connection, lease), connection.cursor() as cursor:
                    cursor.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 1")
            self.stdout.write(f"closed under token {lease.token}")
        except HeldError as held:
            self.stdout.write(f"skipped: {held.holder or 'another host'} runs it")
        except (LeaseLostError, StaleTokenError, UnavailableError) as e:
            raise CommandError(f"not closed: {e}") from e
        finally:
            client.close()
