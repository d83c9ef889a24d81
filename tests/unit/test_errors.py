"""Errors: mapping one to HTTP is data, and safe to put on the wire."""

from __future__ import annotations

import inspect
from http import HTTPStatus

import pytest

from tsbatch import errors
from tsbatch.errors import LoadError, ReplyError, RequestError, SettingsError, TsbatchError, UsageError

ALL = [entry for _, entry in inspect.getmembers(errors, inspect.isclass) if issubclass(entry, TsbatchError)]
REPLIES = [entry for entry in ALL if issubclass(entry, ReplyError)]

STATUSES = {
    "BadRequest": 400,
    "PayloadTooLarge": 413,
    "UnsupportedMedia": 415,
    "Unprocessable": 422,
    "NotSupported": 501,
    "StageFailed": 500,
    "ContractBroken": 500,
    "AnswerTooLarge": 500,
    "NotTried": 503,
    "OutOfMemory": 507,
}


def test_the_statuses():
    assert {entry.__name__: entry.status for entry in REPLIES if entry.__name__ in STATUSES} == STATUSES


@pytest.mark.parametrize("error", REPLIES)
def test_the_phrase_is_the_one_of_http_and_ascii(error):
    names = {error.phrase, HTTPStatus(error.status).phrase}
    assert error.phrase.isascii()
    assert len(names) == 1 or error.status in (413, 422), "Python 3.13 renamed these two"
    assert error.code.isidentifier()


def test_codes_are_unique():
    codes = [entry.code for entry in REPLIES if entry.__name__ in STATUSES]
    assert len(set(codes)) == len(codes)


def test_what_an_error_carries():
    error = errors.BadRequest("wrong", expected="right", stage="decode")
    assert (str(error), error.message, error.expected, error.stage) == ("wrong", "wrong", "right", "decode")
    assert isinstance(error, RequestError)
    assert errors.StageFailed("x").expected is None


def test_who_reads_it():
    assert issubclass(SettingsError, LoadError)
    assert not issubclass(UsageError, ReplyError)
    assert not issubclass(LoadError, ReplyError)
