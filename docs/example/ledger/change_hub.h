#pragma once

// Tells watchers which account changed. A watcher that goes away waits for a call to it that is under way, so that nothing
// is called that is being destroyed.

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "store.h"

namespace example::ledger {

class ChangeHub : public std::enable_shared_from_this<ChangeHub> {
 public:
  using Changed = std::function<void(const std::string&)>;

  std::unique_ptr<Watch> Add(Changed changed) {
    auto entry = std::make_shared<Entry>();
    entry->changed = std::move(changed);
    std::lock_guard lock(mutex_);
    entries_.push_back(entry);
    return std::make_unique<Registration>(shared_from_this(), std::prev(entries_.end()));
  }

  void Tell(const std::string& id) {
    std::list<std::shared_ptr<Entry>> entries;
    {
      std::lock_guard lock(mutex_);
      entries = entries_;
    }
    for (const auto& entry : entries) {
      std::lock_guard lock(entry->mutex);
      if (entry->changed) entry->changed(id);
    }
  }

 private:
  struct Entry {
    std::mutex mutex;
    Changed changed;
  };
  using Place = std::list<std::shared_ptr<Entry>>::iterator;

  class Registration final : public Watch {
   public:
    Registration(std::shared_ptr<ChangeHub> hub, Place place) : hub_(std::move(hub)), place_(place), entry_(*place) {}
    ~Registration() override {
      {
        std::lock_guard lock(hub_->mutex_);
        hub_->entries_.erase(place_);
      }
      std::lock_guard lock(entry_->mutex);
      entry_->changed = nullptr;
    }

   private:
    std::shared_ptr<ChangeHub> hub_;
    Place place_;
    std::shared_ptr<Entry> entry_;
  };

  std::mutex mutex_;
  std::list<std::shared_ptr<Entry>> entries_;
};

}  // namespace example::ledger
