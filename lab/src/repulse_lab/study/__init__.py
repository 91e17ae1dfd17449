"""What every experiment is made of.

problems                                  data, networks, repulsion and evaluation sets: the one place
training, features, cells, measures       networks, features and fits, each a job; what is measured
grid, presets                             methods and networks as the cells of a table
experiment, tables, evaluate              descriptions: of an experiment, its tables, every method on one network
reproduce, output                         from descriptions to files
"""
