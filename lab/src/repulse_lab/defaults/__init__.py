"""One default recipe on many problems, next to the network alone and to other methods: does it keep its promises?

`problem` says what a problem is, `registry` lists all of them, `methods` holds what is compared, `run` measures and
keeps one row per (problem, seed, method), `report` writes the tables and checks the promises.
"""
