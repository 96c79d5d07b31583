class Corridor:
    observation_size, actions, length = 4, 2, 6

    def reset(self):
        self.place, self.clock = 2, 0
        return self._observe()

    def _observe(self):
        return [self.place / self.length, self.clock / 10, float(self.place == 0), 1.0]

    def step(self, action):
        self.clock += 1
        self.place += 1 if action else -1
        done = self.place in (0, self.length)
        return self._observe(), (1.0 if self.place == self.length else -0.1), done
