"""What a fork server of tests imports first."""

from loaded_modules import load_all

load_all()
