"""One file per method; adding one is one file and one line here."""

from typing import Any

from sparsona.methods.beer import Beer
from sparsona.methods.dadpfl.dadpfl import DADPFL
from sparsona.methods.dfedavgm import DFedAvgM
from sparsona.methods.dfedsam import DFedSAM
from sparsona.methods.dispfl import DisPFL
from sparsona.methods.ditto import Ditto
from sparsona.methods.fedavg import FedAvg
from sparsona.methods.fedavg_ft import FedAvgFT
from sparsona.methods.fedbabu import FedBABU
from sparsona.methods.feddst import FedDST
from sparsona.methods.fedem import FedEM
from sparsona.methods.fedmask import FedMask
from sparsona.methods.fednova import FedNova
from sparsona.methods.fedprox import FedProx
from sparsona.methods.fedpse.fedpse import FedPSE
from sparsona.methods.fedrep import FedRep
from sparsona.methods.fedscr import FedSCR
from sparsona.methods.fedspa import FedSpa
from sparsona.methods.fedstc import FedSTC
from sparsona.methods.gossipfl import GossipFL
from sparsona.methods.heterofl import HeteroFL
from sparsona.methods.lgfedavg import LGFedAvg
from sparsona.methods.local import Local
from sparsona.methods.perfedavg import PerFedAvg
from sparsona.methods.perfedmask.perfedmask import PerFedMask
from sparsona.methods.perfedmask.with_heterofl import PerFedMaskHeteroFL
from sparsona.methods.perfedmask.with_splitmix import PerFedMaskSplitMix
from sparsona.methods.pfedgate.pfedgate import PFedGate
from sparsona.methods.pfedme import PFedMe
from sparsona.methods.splitmix import SplitMix
from sparsona.methods.subfedavg import SubFedAvg
from sparsona.methods.subsampling import Subsampling

METHODS: dict[str, Any] = {
    "beer": Beer,
    "dadpfl": DADPFL,
    "dfedavgm": DFedAvgM,
    "dfedsam": DFedSAM,
    "dispfl": DisPFL,
    "ditto": Ditto,
    "fedavg": FedAvg,
    "fedavg_ft": FedAvgFT,
    "fedbabu": FedBABU,
    "feddst": FedDST,
    "fedem": FedEM,
    "fedmask": FedMask,
    "fednova": FedNova,
    "fedprox": FedProx,
    "fedpse": FedPSE,
    "fedrep": FedRep,
    "fedscr": FedSCR,
    "fedspa": FedSpa,
    "fedstc": FedSTC,
    "gossipfl": GossipFL,
    "heterofl": HeteroFL,
    "lgfedavg": LGFedAvg,
    "local": Local,
    "perfedavg": PerFedAvg,
    "perfedmask": PerFedMask,
    "perfedmask+heterofl": PerFedMaskHeteroFL,
    "perfedmask+splitmix": PerFedMaskSplitMix,
    "pfedgate": PFedGate,
    "pfedme": PFedMe,
    "splitmix": SplitMix,
    "subfedavg": SubFedAvg,
    "subsampling": Subsampling,
}
