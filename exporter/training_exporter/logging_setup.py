"""The exporter's own log: one line per event on standard error, as logfmt or JSON."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


def set_up_logging(level: str, form: str) -> None:
    """Send all loggers to standard error from `level` (debug, info, warn, error) on; `form` is logfmt or json."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _LogfmtFormatter())
    logging.basicConfig(level=_LEVELS[level], handlers=[handler], force=True)
    if level != "debug":
        # a port scan or a bad certificate of a client is no event of the exporter
        logging.getLogger("tornado.general").setLevel(logging.ERROR)
        logging.getLogger("asyncio").setLevel(logging.ERROR)


def _fields(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, str]:
    moment = dt.datetime.fromtimestamp(record.created, tz=dt.timezone.utc)
    fields = {
        "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": "WARN" if record.levelno == logging.WARNING else record.levelname,
        "source": record.name.removeprefix("training_exporter."),
        "msg": record.getMessage(),
    }
    if record.exc_info:
        fields["exception"] = formatter.formatException(record.exc_info)
    return fields


class _JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_fields(record, self))


class _LogfmtFormatter(logging.Formatter):
    """`key=value` pairs, a value in quotes where it has to be."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={_quoted(value)}" for key, value in _fields(record, self).items())


def _quoted(value: str) -> str:
    plain = value and value.isprintable() and not any(sign in value for sign in ' "=')
    return value if plain else json.dumps(value, ensure_ascii=False)
