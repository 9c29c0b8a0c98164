"""What can be tried: cases, the domain that holds them, the strategies that draw them, their tensors."""

from strategies.arena import Arena
from strategies.case import RopeCase, Strides
from strategies.domain import Domain, Hole
from strategies.draw import rope_cases

__all__ = ["Arena", "Domain", "Hole", "RopeCase", "Strides", "rope_cases"]
