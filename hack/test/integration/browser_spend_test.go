//go:build browser

package integration_test

import "testing"

func TestThePageShowsCostsAndLimits(t *testing.T) {
	b := newStubFacade(t).opens(t, "#/settings")
	b.waitForText("$12.34 spent in 2026-02 (UTC), $1.00 reserved.", "Limit: $50.00 per month for you, $13.34 used.",
		"Limit: $7.00 per day for your namespace. Resets", "<b>big</b>")
	b.sees("[...document.querySelectorAll('.usage tbody tr')].map((row) => [...row.children].map((cell) => " +
		"cell.textContent).join(' ')).join('; ') === '<b>big</b> 3 $12.00; cheap 3 $0.34'")
}
