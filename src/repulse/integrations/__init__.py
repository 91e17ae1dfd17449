"""Other people's tools and formats: each module is a leaf, imported where it is used, and needs an extra."""
