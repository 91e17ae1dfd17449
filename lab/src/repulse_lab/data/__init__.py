"""Data sets by name, read from a folder of the user's in their publishers' own layouts.

`load("cifar10", "test")` reads, `names()` says what there is, `about("cifar10")` tells of one, `register` adds one.
"""

from repulse_lab.data import catalogue as catalogue
from repulse_lab.data.dataset import Contents, DataSet
from repulse_lab.data.registry import Entry, Found, about, load, names, register

__all__ = ["Contents", "DataSet", "Entry", "Found", "about", "load", "names", "register"]
