"""Find a running instance by name, with fresh tokens and a keeper."""

from __future__ import annotations

from tsbatch.ops import instance as instances
from tsbatch.ops.console import say
from tsbatch.ops.instance import Instance
from tsbatch.ops.keeper import spawn
from tsbatch.ops.management import Progress
from tsbatch.ops.tuning.restore import offer


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
