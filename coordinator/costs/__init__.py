"""What computing and sending will cost: profiles, regressions, links, corrections."""
