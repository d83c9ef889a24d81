"""Connect to a running instance by name, with valid tokens and a process that renews them."""

from __future__ import annotations

from tsbatch.operations.rollback import reminder
from tsbatch.serving import instance as instances
from tsbatch.serving.instance import Instance
from tsbatch.serving.management_client import Progress
from tsbatch.serving.token_keeper import spawn
from tsbatch.system.console import say


def reach(name: str, *, tell: Progress = say) -> Instance:
    """Find the running instance with this name and make sure that a process renews its tokens.

    Args:
        name: the instance.
        tell: called with a line if a killed tuner has left its own settings.

    Raises:
        UsageError: there is none.
        ServerError: it ended unexpectedly or does not respond.
    """
    instance = instances.find(name)
    if note := reminder(instance):
        tell(note)
    if not instance.owner.running():
        instance.keys.renew()
        instance = instance.detach_to(spawn(name))
    return instance
