"""The laboratory: what every experiment is made of.

collections, training, features, cells    images, networks, features and fits, each a job of its own
job, runner                               jobs that are kept, and how many of them are done
experiment, grid, zoo                     descriptions: of an experiment, of a table of methods and networks
reproduce, output                         from descriptions to files
bench, comparison, problems, measures     every method on one problem: `repulse evaluate`
"""
