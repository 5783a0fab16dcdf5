package report

import (
	"fmt"
	"html"
	"strings"
)

// bar of a chart. least and most are drawn as a whisker where they differ.
type bar struct {
	label              string
	key                string // of the figure that it shows, for bars to fill in
	value, least, most float64
	colour             string
	text               string // beside the bar; "": the value
}

const (
	ours      = "#2f6f4f"
	theirs    = "#8a8f98"
	reference = "#c9a227"
	missed    = "#b3472f"
)

// bars fills in the bars whose figures are there, and leaves the others out.
func (f Figures) bars(wanted ...bar) []bar {
	var found []bar
	for _, b := range wanted {
		value, ok := f.number(b.key)
		if !ok {
			continue
		}
		b.value = value
		b.least, _ = f.number(b.key + "_min")
		b.most, _ = f.number(b.key + "_max")
		found = append(found, b)
	}
	return found
}

// chart draws horizontal bars as SVG. It has a background of its own, so that it can be read on a dark page too.
func chart(title, unit string, bars []bar) []byte {
	const width, left, right, row, top = 760, 250, 90, 30, 52
	height := top + row*len(bars) + 16
	most := 0.0
	for _, b := range bars {
		most = max(most, b.value, b.most)
	}
	scale := 0.0
	if most > 0 {
		scale = float64(width-left-right) / most
	}
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n",
		width, height, width, height, html.EscapeString(title))
	s.WriteString(`<rect width="100%" height="100%" fill="#ffffff"/>` + "\n")
	s.WriteString(`<g font-family="system-ui, sans-serif" font-size="13" fill="#1c1f23">` + "\n")
	fmt.Fprintf(&s, `<text x="16" y="26" font-size="16" font-weight="600">%s</text>`+"\n", html.EscapeString(title))
	fmt.Fprintf(&s, `<text x="%d" y="26" text-anchor="end" fill="#5c636b">%s</text>`+"\n", width-16, html.EscapeString(unit))
	for i, b := range bars {
		y := top + row*i
		middle := y + row/2 - 4
		fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left-10, middle+5, html.EscapeString(b.label))
		fmt.Fprintf(&s, `<rect x="%d" y="%d" width="%.1f" height="%d" rx="2" fill="%s"/>`+"\n", left, y, max(1, b.value*scale), row-8, b.colour)
		end := max(b.value, b.most) * scale
		if b.most > b.least {
			from, to := float64(left)+b.least*scale, float64(left)+b.most*scale
			fmt.Fprintf(&s, `<path d="M%.1f %d H%.1f M%.1f %d v8 M%.1f %d v8" stroke="#1c1f23" fill="none"/>`+"\n",
				from, middle, to, from, middle-4, to, middle-4)
		}
		text := b.text
		if text == "" {
			text = short(b.value)
		}
		fmt.Fprintf(&s, `<text x="%.1f" y="%d">%s</text>`+"\n", float64(left)+end+8, middle+5, html.EscapeString(text))
	}
	s.WriteString("</g>\n</svg>\n")
	return []byte(s.String())
}

// short writes a figure as people read it: 14,300 or 3.25.
func short(v float64) string {
	switch {
	case v >= 1000:
		text := fmt.Sprintf("%.0f", v)
		var parts []string
		for len(text) > 3 {
			parts = append([]string{text[len(text)-3:]}, parts...)
			text = text[:len(text)-3]
		}
		return strings.Join(append([]string{text}, parts...), ",")
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.1 || v == 0:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.4f", v)
}
