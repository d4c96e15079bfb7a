"""The report: what the record knows of a fleet, as one page of HTML; pure, from values to text."""
