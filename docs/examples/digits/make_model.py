"""Write the example's weights in every form that a handler can load; run in an empty folder.

python make_model.py net.safetensors | net.pt | program.pt | program.pt2
"""

import sys

import torch
from net import Net
from safetensors.torch import save_file


def main(file: str) -> None:
    """Write ``file``; its name says the form."""
    torch.manual_seed(0)
    net = Net().eval()
    if file == "net.safetensors":
        save_file(net.state_dict(), file)
    elif file == "net.pt":
        torch.save(net.state_dict(), file)
    elif file == "program.pt":
        torch.jit.trace(net, torch.zeros(2, 64)).save(file)
    elif file == "program.pt2":
        # The batch dimension must be dynamic: batches have any size from 1 to batchSize.
        batch = torch.export.Dim("batch")
        torch.export.save(torch.export.export(net, (torch.zeros(2, 64),), dynamic_shapes=({0: batch},)), file)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:2] or [""])
