"""What people look at: tables and plots made from evaluated records."""
