"""Lakes: tables that grow by runs, in versions, on local file systems and object stores."""
