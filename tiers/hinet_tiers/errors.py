"""The error tree of the models part.

Each error has a stable `code`, the exit code that the command line uses for it, and a message that says what happened,
why, and what to do next. A worker sends `code`, `exit_code` and the message over its pipe.
"""

from __future__ import annotations


class TierError(Exception):
    """Any failure of the models part."""

    code = "E_TIER"
    exit_code = 1


class BadRequest(TierError):
    """A worker was asked for something that its verbs do not allow."""

    code = "E_WORKER_REQUEST"
    exit_code = 2


class BackendMissing(TierError):
    """A library that this work needs is not installed."""

    code = "E_BACKEND_MISSING"
    exit_code = 1


class BaseRefused(TierError):
    """A model file or folder cannot become a base."""

    code = "E_BASE_REFUSED"
    exit_code = 7


class BaseNotFound(TierError):
    """No model lies at the given path."""

    code = "E_BASE_NOT_FOUND"
    exit_code = 2


class BaseTruncated(BaseRefused):
    """A model file ends before its header says that it does."""

    code = "E_BASE_TRUNCATED"


class BaseForeign(BaseRefused):
    """A model is well formed but is not of the Llama family, or not in a form that is known here."""

    code = "E_BASE_FOREIGN"


class BaseIncomplete(BaseRefused):
    """A model lacks tensors, a tokenizer or settings."""

    code = "E_BASE_INCOMPLETE"


class BaseDamaged(BaseRefused):
    """An installed base no longer matches its manifest."""

    code = "E_BASE_DAMAGED"


class BaseMismatch(TierError):
    """A task vector or an adapter belongs to another base."""

    code = "E_BASE_MISMATCH"
    exit_code = 7


class AdapterRefused(TierError):
    """An adapter's names, shapes, rank or values do not fit."""

    code = "E_ADAPTER_REFUSED"
    exit_code = 7


class AdapterInert(AdapterRefused):
    """An adapter was loaded and changed nothing."""

    code = "E_ADAPTER_INERT"


class NotLoaded(TierError):
    """An answer was asked for before a base was loaded."""

    code = "E_NOT_LOADED"
    exit_code = 1


class DoesNotFit(TierError):
    """A job needs more memory than there is."""

    code = "E_DOES_NOT_FIT"
    exit_code = 1


class NoSpace(TierError):
    """The disk is full."""

    code = "E_NO_SPACE"
    exit_code = 8


class MergeRefused(TierError):
    """Inputs can't be merged as asked: empty, of the wrong kind, not finite."""

    code = "E_MERGE_REFUSED"
    exit_code = 7


class MergeTooFar(MergeRefused):
    """An input or the merge lies further from the base than the bound."""

    code = "E_MERGE_TOO_FAR"


class MergeSetting(TierError):
    """An unknown merge method, or a setting, weight or seed that it can't take."""

    code = "E_MERGE_SETTING"
    exit_code = 2


class ComposeRefused(TierError):
    """Specialists, probes or notes that composing can't work with."""

    code = "E_COMPOSE_REFUSED"
    exit_code = 2


class RoutesRefused(TierError):
    """Routes that belong to another embedding model or base, or lack a specialist."""

    code = "E_ROUTES_REFUSED"
    exit_code = 7
