{{/* Names, labels, and what every pod has in common. */}}
{{- define "strobe.image" -}}
{{ .root.Values.image.registry }}/{{ .name }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- define "strobe.selector" -}}
app.kubernetes.io/name: strobe
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "strobe.labels" -}}
{{ include "strobe.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* A pod that is none of the agent's passes the restricted profile of the pod security standards. */}}
{{- define "strobe.pod" -}}
serviceAccountName: {{ .root.Release.Name }}-strobe
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "strobe.container" -}}
image: {{ include "strobe.image" (dict "root" .root "name" "strobe") | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "strobe.env" -}}
- {name: STROBE_CONFIG, value: /etc/strobe/strobe.toml}
- {name: STROBE_BOOTSTRAP, value: {{ .Values.bus.bootstrap | quote }}}
- {name: STROBE_CLICKHOUSE_URL, value: {{ .Values.clickhouse.url | quote }}}
{{- end }}

{{/* Every role sees its own secrets and no other's. */}}
{{- define "strobe.busMount" -}}
{{- if . }}
- {name: bus, mountPath: /etc/strobe/bus, readOnly: true}
{{- end }}
{{- end }}
{{- define "strobe.busVolume" -}}
{{- if . }}
- {name: bus, secret: {secretName: {{ . }}, defaultMode: 288}}
{{- end }}
{{- end }}
