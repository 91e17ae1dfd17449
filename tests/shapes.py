"""The type checker of the tests: shapes by jaxtyping, types by beartype, an int being welcome where a float is."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
