"""Test your own method: ``check_method`` runs the contract test that all built-in methods pass.

>>> from sparsona.testing import check_method
>>> check_method(Mine(lr=0.1))
"""

from sparsona.testing.contract import CHECKS, check_method
from sparsona.testing.scene import Scene

__all__ = ["CHECKS", "Scene", "check_method"]
