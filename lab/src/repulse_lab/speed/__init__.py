"""What everything costs, as ratios: `repulse-lab bench`. One benchmark per file; `run.py` knows them all."""
