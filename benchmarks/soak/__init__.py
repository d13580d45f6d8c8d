"""Does anything grow?"""
