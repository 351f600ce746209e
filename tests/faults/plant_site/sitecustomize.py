"""First on the path of the processes of a planted run: each plants the defect before it begins."""

from tests.faults.planting import plant_here

plant_here()
