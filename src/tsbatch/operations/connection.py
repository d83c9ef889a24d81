"""Find a running instance by name, with fresh tokens and a keeper."""

from __future__ import annotations

from tsbatch.operations.rollback import offer
from tsbatch.serving import instance as instances
from tsbatch.serving.instance import Instance
from tsbatch.serving.management_client import Progress
from tsbatch.serving.token_keeper import spawn
from tsbatch.system.console import say


def reach(name: str, *, tell: Progress = say) -> Instance:
    """The running instance with this name, its tokens fresh and somebody there to keep them so.

    Args:
        name: the instance.
        tell: told in a line when a tuner was killed and left its own settings behind.

    Raises:
        UsageError: when there is none.
        ServerError: when it ended by itself, or does not answer.
    """
    instance = instances.find(name)
    if left := offer(instance):
        tell(left)
    if not instance.owner.running():
        instance.keys.renew()
        instance = instance.detach_to(spawn(name))
    return instance
