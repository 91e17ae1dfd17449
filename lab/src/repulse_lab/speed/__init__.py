"""What everything costs, as ratios: `repulse bench`. One group of measurements a file; `run.py` knows them all."""
