"""The losses, one file per method: modules from logits (B, K) and labels (B, C) to a scalar.

    import torch
    from centerhash import hash_centers
    from centerhash.losses import ICSLoss

    loss = ICSLoss(hash_centers(classes=80, bits=64))(torch.randn(4, 64), torch.rand(4, 80) < 0.1)

The examples of all losses need these imports.

Central, from hash centers (C, K): ICSLoss, ICSSoftmaxLoss, CSQLoss, DPNLoss, EWCSLoss, OrthoHashLoss, MDSHLoss, and
LSCSHLoss and CRHLoss, which change the centers. Pairs and triplets: DPSHLoss, DHNLoss, HashNetLoss, DCHLoss, IDHNLoss,
DNNHLoss. Learned vectors per class: HyP2Loss, GreedyHashLoss. Codes first: CNNHLoss. A custom loss is a subclass of
`HashingLoss` or `CentralLoss`, whose keyword arguments are its options (`Option`).
"""

from centerhash.core.options import Option as Option
from centerhash.losses.base import Batch as Batch
from centerhash.losses.base import CentralLoss as CentralLoss
from centerhash.losses.base import HashingLoss as HashingLoss
from centerhash.losses.base import HeadOutput as HeadOutput
from centerhash.losses.cnnh import CNNHLoss as CNNHLoss
from centerhash.losses.crh import CRHLoss as CRHLoss
from centerhash.losses.csq import CSQLoss as CSQLoss
from centerhash.losses.dch import DCHLoss as DCHLoss
from centerhash.losses.dhn import DHNLoss as DHNLoss
from centerhash.losses.dnnh import DNNHLoss as DNNHLoss
from centerhash.losses.dpn import DPNLoss as DPNLoss
from centerhash.losses.dpsh import DPSHLoss as DPSHLoss
from centerhash.losses.greedyhash import GreedyHashLoss as GreedyHashLoss
from centerhash.losses.hashnet import HashNetLoss as HashNetLoss
from centerhash.losses.hyp2 import HyP2Loss as HyP2Loss
from centerhash.losses.ics import EWCSLoss as EWCSLoss
from centerhash.losses.ics import ICSLoss as ICSLoss
from centerhash.losses.ics_softmax import ICSSoftmaxLoss as ICSSoftmaxLoss
from centerhash.losses.idhn import IDHNLoss as IDHNLoss
from centerhash.losses.lscsh import LSCSHLoss as LSCSHLoss
from centerhash.losses.mdsh import MDSHLoss as MDSHLoss
from centerhash.losses.orthohash import OrthoHashLoss as OrthoHashLoss
