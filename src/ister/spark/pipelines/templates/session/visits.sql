-- A visit is over when its user has not clicked for ten minutes.
SELECT
  user,
  session_window.start AS begun,
  session_window.end AS ended,
  count(*) AS clicks,
  collect_set(page) AS pages
FROM clicks
GROUP BY user, session_window(at, '10 minutes')
