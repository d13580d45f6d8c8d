"""The page at `/`: what the cluster does, live, and a picture to try it with."""
