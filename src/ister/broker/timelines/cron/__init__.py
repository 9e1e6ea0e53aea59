"""The rules of cron topics: when each makes its next message, and how owners change them."""

from ister.broker.timelines.cron.rules import CronRules
from ister.broker.timelines.cron.topic_changes import change_with_rules

__all__ = ["CronRules", "change_with_rules"]
