"""How good is a model?"""
