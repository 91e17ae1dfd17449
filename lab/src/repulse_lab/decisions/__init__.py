"""Whether decisions hold what they promise, on real data: pools of predictions, gates and watches over draws."""
