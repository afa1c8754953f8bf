"""POST /accounts/<id>/deposits/<deposit> {"amount": 5} under the account's lock, with Django, in one file.

DATABASE_URL=postgres://… FENCELOCK_URL=http://127.0.0.1:8080 gunicorn --workers 3 django_app:application   (psycopg2)
"""
import json
import os
import secrets
import time
from urllib.parse import urlsplit

import django
from django.conf import settings

DATABASE_URL = os.environ["DATABASE_URL"]
settings.configure(
    SECRET_KEY=secrets.token_hex(),  # nothing is signed here, but an error is not logged without one
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["127.0.0.1"],
    MIDDLEWARE=[f"{__name__}.LockMiddleware"],
    DATABASES={"default": {
        "ENGINE": "django.db.backends.postgresql", "NAME": urlsplit(DATABASE_URL).path[1:], "OPTIONS": {"dsn": DATABASE_URL}, "CONN_MAX_AGE": 60,
    }},
)
django.setup()

from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.db import connection, models  # noqa: E402
from django.http import JsonResponse  # noqa: E402
from django.urls import path  # noqa: E402
from django.views.decorators.http import require_POST  # noqa: E402
from fencelock import Client, HeldError, LeaseLostError, UnavailableError  # noqa: E402
from fencelock.guard import fenced  # noqa: E402

locks = Client(os.environ["FENCELOCK_URL"])
TTL = float(os.environ.get("LEASE_TTL", "30"))  # seconds


class Account(models.Model):
    balance = models.BigIntegerField()

    class Meta:
        app_label, db_table, managed = "shop", "accounts", False


class Deposit(models.Model):
    id = models.TextField(primary_key=True)
    account = models.IntegerField()
    amount = models.BigIntegerField()

    class Meta:
        app_label, db_table, managed = "shop", "deposits", False


class LockMiddleware:
    """Calls a view that names its lock under that, with request.lease."""

    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        return self.get_response(request)

    def process_view(self, request, view, args, kwargs):
        if not hasattr(view, "lock"):
            return None
        try:
            with locks.lock(view.lock.format(**kwargs), ttl=TTL, wait=5) as request.lease:
                return view(request, *args, **kwargs)
        except (HeldError, UnavailableError) as error:
            return JsonResponse({"error": str(error)}, status=503)
        except LeaseLostError as error:  # also StaleTokenError: another process had the lock meanwhile
            return JsonResponse({"error": str(error)}, status=409)


@require_POST
def deposit(request, account, deposit):
    amount = json.loads(request.body)["amount"]
    with fenced(connection, request.lease):
        row = Account.objects.get(pk=account)
        time.sleep(0.1)  # the rules of the business
        row.balance += amount
        Deposit.objects.create(id=deposit, account=account, amount=amount)
        row.save()
    return JsonResponse({"balance": row.balance})


deposit.lock = "accounts/{account}"
urlpatterns = [path("accounts/<int:account>/deposits/<deposit>", deposit)]
application = get_wsgi_application()
