"""The page at `/`: the cluster's live state, and a picture to try it with."""
