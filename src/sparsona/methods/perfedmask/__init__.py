"""PerFedMask: the method, its combinations with HeteroFL and Split-Mix, and the solvers that design layer masks."""
