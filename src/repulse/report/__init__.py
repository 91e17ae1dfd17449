"""Results for people: aligned tables, figures that follow the page's colours, and one self-contained HTML page."""

from repulse.report.page import Gallery, Page, Picture, Section
from repulse.report.table import Column, Table

__all__ = ["Column", "Gallery", "Page", "Picture", "Section", "Table"]
