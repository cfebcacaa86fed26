"""What goes out: feedback pages, points, the report and exports."""
